"""The command line: experiments (`ls show tail why stop clean`) and sessions (`status why stop`)."""
