"""Float64 definitions of every op and of the whole net: what the device is held against."""
