"""What any map can be asked, whatever it is read from: `pipelines.maps.answers`."""
