"""Maps of any origin that answer the same questions: `pipelines.maps.answers`."""
