"""Commands. The only room that prints, reads clocks or draws at random."""
