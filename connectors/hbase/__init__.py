"""Tables of HBase, through its Thrift server and happybase."""
