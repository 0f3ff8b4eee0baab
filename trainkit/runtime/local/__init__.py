"""The local engine: a node that supervises, workers forked from templates, calls sent directly."""
