"""The experiment `highdim`: exact Grams and certified heads up to d = 8192."""
