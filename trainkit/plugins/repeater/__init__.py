"""The searcher `Repeater`, which runs each configuration several times."""
