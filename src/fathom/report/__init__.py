"""What people look at: made from run directories and rows alone, so a copied directory is enough."""
