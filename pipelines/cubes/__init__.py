"""The nouns that travel: cubes, columns, maps of the sky and of shells."""
