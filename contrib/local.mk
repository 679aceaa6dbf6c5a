# SPDX-License-Identifier: Apache-2.0
dist_noinst_SCRIPTS += contrib/format
bashcompletiondir = $(datadir)/bash-completion/completions
dist_bashcompletion_DATA = contrib/completion/dlrover
# srun's own name in the folder above is taken by Slurm's completion.
bashcompletioneagerdir = $(sysconfdir)/bash_completion.d
dist_bashcompletioneager_DATA = contrib/completion/dlrover-slurm
dist_noinst_SCRIPTS += contrib/install-packages contrib/run-tests
EXTRA_DIST += contrib/packages.debian contrib/testing/run_tests.py
dist_noinst_SCRIPTS += contrib/minicluster
EXTRA_DIST += contrib/minicluster.d/mcluster/__init__.py contrib/minicluster.d/mcluster/accounting.py contrib/minicluster.d/mcluster/cgroups.py contrib/minicluster.d/mcluster/cluster.py contrib/minicluster.d/mcluster/conf.py \
	contrib/minicluster.d/mcluster/environ.py contrib/minicluster.d/mcluster/faults.py contrib/minicluster.d/mcluster/foreground.py contrib/minicluster.d/mcluster/inside.py contrib/minicluster.d/mcluster/kernel.py contrib/minicluster.d/mcluster/lifecycle.py \
	contrib/minicluster.d/mcluster/net.py contrib/minicluster.d/mcluster/proc.py contrib/minicluster.d/mcluster/reaper.py contrib/minicluster.d/mcluster/report.py contrib/minicluster.d/mcluster/requirements.py contrib/minicluster.d/mcluster/services.py contrib/minicluster.d/mcluster/spawn.py
dist_noinst_SCRIPTS += contrib/quickstart contrib/testing/torch-venv contrib/testing/unity.py
EXTRA_DIST += contrib/testing/quickstart.py
dist_bashcompletion_DATA += contrib/completion/dlrover-run
