"""The foundation of all rooms: errors and messages, units, documents, the cache, output. Imports no other room."""
