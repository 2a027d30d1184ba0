"""From star catalogue to dust map: files in, files out."""
