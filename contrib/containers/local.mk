# SPDX-License-Identifier: Apache-2.0
# What a container must see of the node (docs/containers.md), in the words of enroot and of Apptainer. Made in the build
# folder, with the paths of this installation.
containersdir = $(pkgdatadir)/containers
nodist_containers_DATA = contrib/containers/enroot.fstab contrib/containers/apptainer.conf
CLEANFILES += $(nodist_containers_DATA)
container_library = $(libdir)/libdlrover.so.0
container_package = $(dlroverpythondir)/dlrover_slurm

contrib/containers/enroot.fstab: Makefile
	$(AM_V_GEN)$(MKDIR_P) contrib/containers && { \
		echo '# For /etc/enroot/mounts.d: programs in containers reach dlroverd, and find libdlrover and the Python package.'; \
		echo '/run/dlrover /run/dlrover none x-create=dir,bind,rw,nosuid,nodev,noexec'; \
		echo '$(container_library) $(container_library) none x-create=file,bind,ro,nosuid,nodev'; \
		echo '$(container_package) $(container_package) none x-create=dir,bind,ro,nosuid,nodev'; } >$@

contrib/containers/apptainer.conf: Makefile
	$(AM_V_GEN)$(MKDIR_P) contrib/containers && { \
		echo '# For apptainer.conf: programs in containers reach dlroverd, and find libdlrover and the Python package.'; \
		echo 'bind path = /run/dlrover'; \
		echo 'bind path = $(container_library)'; \
		echo 'bind path = $(container_package)'; } >$@
