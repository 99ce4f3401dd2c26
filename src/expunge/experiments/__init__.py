"""The paper's experiments: data, partitions, every system that is compared, tables and figures. Uses public names only."""
