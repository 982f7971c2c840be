module dormice.example/steer

go 1.26.0

require (
	go.temporal.io/sdk v1.51.0 // indirect
	golang.org/x/crypto v0.59.0 // indirect
)
