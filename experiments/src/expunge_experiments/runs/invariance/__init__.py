"""The experiment `invariance`: how far partition, arithmetic and gamma move the head."""
