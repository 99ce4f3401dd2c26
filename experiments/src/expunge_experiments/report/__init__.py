"""What is written of results: tables, figures, a page, and the paper's own numbers beside them."""
