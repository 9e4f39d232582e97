module github.com/boursemq/bourse

go 1.26

require (
	github.com/google/btree v1.1.3
	github.com/stretchr/testify v1.12.1
	pgregory.net/rapid v1.3.0
)

require github.com/robfig/cron/v3 v3.0.1

require github.com/klauspost/compress v1.18.6

require (
	go.uber.org/goleak v1.3.0
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
