# right: TODO: what it does and what it costs.
