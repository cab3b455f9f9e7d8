"""From the settings of a run to the files of a cluster, or to processes of this machine."""
