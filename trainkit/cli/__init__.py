"""Command line: experiments (`ls show tail why stop clean dashboard`) and sessions (`status why stop`)."""
