"""Serve from settings in a JSON file; says where, like the command line does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from proxemics.serve.app import create_app
from proxemics.serve.run import address_of, listen, run
from proxemics.serve.settings import ServeSettings

if __name__ == "__main__":
    settings = ServeSettings(**json.loads(Path(sys.argv[1]).read_text()))
    with listen(settings.host, settings.port) as opened:
        app = create_app(settings)
        where = address_of(opened)
        sys.exit(
            run(app, opened, settings, ready=lambda: sys.stdout.write(f"Serving at {where}\n") and sys.stdout.flush())
        )
