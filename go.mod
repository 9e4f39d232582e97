module github.com/boursemq/bourse

go 1.26
