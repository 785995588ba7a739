"""Services: which port of which service leads where on this node, and what switch, firewall and proxy make of it."""
