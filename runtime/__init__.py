"""What both processes are built from: the machine contract and its cores, and the shells around them."""

if __name__ != "snapline.runtime":
    raise ImportError("runtime is a part of Snapline, and snapline its only name in Python: import snapline.runtime")
