module dledger

go 1.26
