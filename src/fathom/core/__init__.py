"""The mathematics: pure functions of arrays. No files, no clocks, no printing."""
