"""Jobs over many pictures: reading them from where they lie, embedding them, writing what came of it."""
