"""A framework that does not exist, as somebody else would deliver it: a format and its older form, a layout, a family, a chain."""
