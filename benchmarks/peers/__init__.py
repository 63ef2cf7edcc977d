"""What framefuse is compared with end to end, in an environment of its own (env.sh); never a dependency."""
