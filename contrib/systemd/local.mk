# SPDX-License-Identifier: Apache-2.0
systemdsystemunit_DATA = contrib/systemd/dlroverd.service contrib/systemd/dlrover.slice
contrib/systemd/dlroverd.service: contrib/systemd/dlroverd.service.in Makefile
	$(AM_V_GEN)$(MKDIR_P) contrib/systemd && $(SED) -e 's|@sbindir[@]|$(sbindir)|' $(top_srcdir)/contrib/systemd/dlroverd.service.in > $@
CLEANFILES += contrib/systemd/dlroverd.service
EXTRA_DIST += contrib/systemd/dlroverd.service.in contrib/systemd/dlrover.slice
