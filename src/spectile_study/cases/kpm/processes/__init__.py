"""What the cases of KPM run in processes of their own: MPI ranks, and Kwant in its own environment."""
