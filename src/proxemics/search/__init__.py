"""Vector indexes tied to the model that made them: embedded ones and real servers."""

from proxemics.search.index import Index, Verified
from proxemics.search.items import Hits, Items
from proxemics.search.manifest import Manifest, ModelKey
from proxemics.search.where import Condition, parse_where

__all__ = ["Condition", "Hits", "Index", "Items", "Manifest", "ModelKey", "Verified", "parse_where"]
