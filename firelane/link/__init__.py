"""Links between processes of Firelane: framed messages over a socket, with one error for a peer that is lost
and one for what is no frame."""
