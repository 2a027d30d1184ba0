"""The nouns that travel: cubes, columns, maps of the sky."""
