"""Values and their way through a program: where they are made, who reads them, what they depend on, where they lie."""
