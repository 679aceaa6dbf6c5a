# SPDX-License-Identifier: Apache-2.0
# Pure Python: one copy serves every interpreter. Installed as data, without byte code.
dlrover_slurmdir = $(dlroverpythondir)/dlrover_slurm
dist_dlrover_slurm_DATA = python/dlrover_slurm/__init__.py python/dlrover_slurm/_chunks.py python/dlrover_slurm/_dtypes.py \
	python/dlrover_slurm/_cuda.py python/dlrover_slurm/_durable.py python/dlrover_slurm/_errors.py python/dlrover_slurm/_events.py python/dlrover_slurm/_global.py python/dlrover_slurm/_hook.py python/dlrover_slurm/_library.py \
	python/dlrover_slurm/_numpy.py python/dlrover_slurm/_optimizers.py python/dlrover_slurm/_prepare.py python/dlrover_slurm/_progress.py python/dlrover_slurm/_rng.py python/dlrover_slurm/_session.py python/dlrover_slurm/_share.py python/dlrover_slurm/_stay.py \
	python/dlrover_slurm/_state.py python/dlrover_slurm/_torch.py python/dlrover_slurm/_upload.py python/dlrover_slurm/_version.py python/dlrover_slurm/convert.py python/dlrover_slurm/py.typed \
	python/dlrover_slurm/_dcp_metadata.py python/dlrover_slurm/_dcp_object.py python/dlrover_slurm/_dcp_stored.py python/dlrover_slurm/compat.py python/dlrover_slurm/dcp.py python/dlrover_slurm/_hf_position.py python/dlrover_slurm/hf.py

# Where libdlrover.so was installed; for programs that start Python: the folder for PYTHONPATH.
nodist_dlrover_slurm_DATA = python/_paths.py
nodist_pkgdata_DATA = python/pythonpath
CLEANFILES += python/_paths.py python/pythonpath
python/_paths.py: Makefile
	$(AM_V_GEN)$(MKDIR_P) python && printf '# SPDX-License-Identifier: Apache-2.0\nLIBDIR = "%s"\n' '$(libdir)' >$@
python/pythonpath: Makefile
	$(AM_V_GEN)$(MKDIR_P) python && echo '$(dlroverpythondir)' >$@
