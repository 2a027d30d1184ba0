"""The nouns that travel: cubes, integrals along rays, columns, shells."""
