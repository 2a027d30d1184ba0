"""Maps of any origin behind one interface: `pipelines.maps.answers`."""
