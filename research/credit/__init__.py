"""Where credit assignment pays: tasks with dials and exact values, hypotheses registered before their runs."""
