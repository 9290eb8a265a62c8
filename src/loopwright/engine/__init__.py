"""The inference layer: models, attention, KV blocks, sampling. The only place with torch. Made by compose."""
