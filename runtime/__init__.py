"""What both processes are built from: the machine contract and its cores, and the shells around them."""
