# SPDX-License-Identifier: Apache-2.0
systemdsystemunit_DATA = contrib/systemd/dlrover.service contrib/systemd/dlrover.slice
contrib/systemd/dlrover.service: contrib/systemd/dlrover.service.in Makefile
	$(AM_V_GEN)$(MKDIR_P) contrib/systemd && $(SED) -e 's|@sbindir[@]|$(sbindir)|' $(top_srcdir)/contrib/systemd/dlrover.service.in > $@
CLEANFILES += contrib/systemd/dlrover.service
EXTRA_DIST += contrib/systemd/dlrover.service.in contrib/systemd/dlrover.slice
