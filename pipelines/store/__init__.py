"""From a posterior to the map store: `pipelines.store.writing.write_store`."""
