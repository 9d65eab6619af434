// Half precision is not taken on the host.
