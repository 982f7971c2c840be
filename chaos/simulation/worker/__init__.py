"""The workers of a simulation: model processes that execute tasks with the code of dormice."""
