"""The subcommands of `grpo`: HELP, DESCRIPTION, add_arguments(parser) and run(arguments) -> exit status, one a file.

They are imported to build the parser, so that nothing heavy is imported before `run`.
"""
