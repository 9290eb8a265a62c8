"""Values and protocols that cross layers: calls, batches, events, ids, errors, config, clock. Knows no layer above."""
