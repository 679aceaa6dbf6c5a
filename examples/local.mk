# SPDX-License-Identifier: Apache-2.0
digitsdir = $(pkgdatadir)/examples/digits
dist_digits_DATA = examples/digits/README.md examples/digits/data.py examples/digits/model.py
dist_digits_SCRIPTS = examples/digits/train.py
