"""`firelane quantize`: a checkpoint of codes, in the format of compressed-tensors."""
